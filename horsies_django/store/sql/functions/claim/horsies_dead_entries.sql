-- Returns how many dead entries of the index of waiting tasks this session has read lately; PostgreSQL begins anew between transactions. An
-- entry is dead if no row was found by it. Counted with track_counts, which autovacuum needs, too.
-- Locks: none. Index: none.
CREATE OR REPLACE FUNCTION horsies_dead_entries() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT pg_stat_get_xact_tuples_returned('horsies_tasks_claim'::regclass) - pg_stat_get_xact_tuples_fetched('horsies_tasks_claim'::regclass)
$$;
