-- Returns the permissions that the gates of a name in a run ask for.
-- Locks: none. Index: horsies_workflow_nodes_signal.
SELECT DISTINCT n.permission FROM horsies_workflow_nodes n
WHERE n.workflow_id = %(workflow)s::uuid AND n.signal = %(gate)s::text AND n.kind = 'gate' AND n.permission IS NOT NULL
