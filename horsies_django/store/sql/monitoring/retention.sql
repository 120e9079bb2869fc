-- Lists the retentions whose last round that left nothing is older than "late", the oldest first.
-- Args: keys: of the retentions of the settings; those that tasks brought along are always
-- included.
SELECT p.key, p.done_at
FROM horsies_prunings p
WHERE (p.key = ANY (%(keys)s::text[]) OR starts_with(p.key, 'keep: '))
  AND p.done_at < clock_timestamp() - %(late)s::interval
ORDER BY p.done_at, p.key
LIMIT %(many)s::int
