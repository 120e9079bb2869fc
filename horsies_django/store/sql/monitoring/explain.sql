-- Reads what decides now whether a task runs; see functions/explain/horsies_explain.sql.
-- Locks: none. Index: primary keys, horsies_tasks_holding, horsies_tasks_claim, horsies_tasks_parked, horsies_tasks_order.
SELECT horsies_explain(%(id)s::uuid, %(claimed)s::boolean, %(threshold)s::interval, %(many)s::int, %(bound)s::int)::text
