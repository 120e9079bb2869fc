-- Lists the retentions whose last round that left nothing is older than that, the oldest first: those
-- of the settings, and those that tasks brought along.
SELECT p.key, p.done_at FROM horsies_prunings p
WHERE (p.key = ANY (%(keys)s::text[]) OR starts_with(p.key, 'keep: '))
  AND p.done_at < clock_timestamp() - %(late)s::interval
ORDER BY p.done_at, p.key LIMIT %(many)s::int
