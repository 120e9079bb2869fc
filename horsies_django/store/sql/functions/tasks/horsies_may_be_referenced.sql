-- Returns whether a table has rows to which foreign keys of other tables may refer that do not let them be deleted; see
-- horsies_referenced.
CREATE OR REPLACE FUNCTION horsies_may_be_referenced(p_table regclass) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (
    SELECT FROM pg_trigger guard
    WHERE guard.tgrelid = p_table
      AND guard.tgfoid IN ('"RI_FKey_noaction_del"'::regproc, '"RI_FKey_restrict_del"'::regproc))
$$;
