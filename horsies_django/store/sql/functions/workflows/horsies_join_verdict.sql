-- Returns what the upstream nodes of a node mean for it: 'READY', 'SKIPPED' or 'PENDING'.
-- p_rule: 'all'; 'quorum' of p_needs among the p_branches that p_ok and p_bad count, once all others in p_open have ended; or, of a batch,
-- 'succeeded', 'failed' and 'finished', which wait for every upstream node. With p_allow_failed, nodes that did not complete count like those
-- that did.
-- Locks: none. Index: those of horsies_has_failed_upstream.
CREATE OR REPLACE FUNCTION horsies_join_verdict(p_workflow uuid, p_number bigint, p_rule text, p_needs int, p_allow_failed boolean,
                                     p_branches int, p_open int, p_ok int, p_bad int) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN p_rule = 'quorum' THEN
      CASE WHEN p_branches - CASE WHEN p_allow_failed THEN 0 ELSE p_bad END < p_needs THEN 'SKIPPED'
           WHEN p_ok + CASE WHEN p_allow_failed THEN p_bad ELSE 0 END < p_needs OR p_open > p_branches - p_ok - p_bad THEN 'PENDING'
           ELSE 'READY' END
    WHEN p_rule = 'all' AND p_bad > 0 AND NOT p_allow_failed THEN 'SKIPPED'
    WHEN p_open > 0 THEN 'PENDING'
    WHEN p_rule = 'failed' THEN CASE WHEN horsies_has_failed_upstream(p_workflow, p_number) THEN 'READY' ELSE 'SKIPPED' END
    WHEN p_rule = 'succeeded' THEN CASE WHEN horsies_has_failed_upstream(p_workflow, p_number) THEN 'SKIPPED' ELSE 'READY' END
    ELSE 'READY' END
$$;
