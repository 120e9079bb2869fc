-- Returns whether a foreign key refers to a table that does not let the rows be deleted to which it
-- refers; see horsies_referenced.
CREATE OR REPLACE FUNCTION horsies_may_be_referenced(p_table regclass) RETURNS boolean
LANGUAGE sql STABLE AS $$
  SELECT EXISTS (
    SELECT
    FROM pg_trigger guard
    WHERE guard.tgrelid = p_table
      AND guard.tgfoid IN ('"RI_FKey_noaction_del"'::regproc, '"RI_FKey_restrict_del"'::regproc)
  )
$$;
