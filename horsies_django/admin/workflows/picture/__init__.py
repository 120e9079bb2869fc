"""The picture of a run: its nodes as boxes in layers, drawn as SVG on the server."""
