"""Tests of the demo's parts that need neither site nor worker."""
