-- Returns the rows among p_ids to which rows of other tables refer by foreign keys that do not let
-- them be deleted. These include rows that CASCADE and SET NULL of Django's models would change,
-- because only Django itself changes them. Without such keys, as usual, it reads one index of the
-- catalog.
--
-- Reports these rows in a notice with the SQLSTATE HK001. Leaves out keys of tables that the caller
-- may not read: the deletion raises then, at the commit if the key is deferred.
--
-- Args: p_table: it has the primary key "id".
-- Index: those of the foreign keys.
CREATE OR REPLACE FUNCTION horsies_referenced(p_table regclass, p_ids anyarray) RETURNS anyarray
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_key record;
  v_some p_ids%TYPE;
  v_all p_ids%TYPE := '{}';
BEGIN
  FOR v_key IN
    SELECT
      fk.conrelid::regclass AS referrer,
      string_agg(quote_ident(own.attname), ', ') AS columns,
      string_agg(format('r.%I = t.%I', own.attname, other.attname), ' AND ') AS equal
    FROM pg_trigger guard
    JOIN pg_constraint fk ON fk.oid = guard.tgconstraint
    CROSS JOIN LATERAL unnest(fk.conkey, fk.confkey) AS pair (own, other)
    JOIN pg_attribute own ON own.attrelid = fk.conrelid AND own.attnum = pair.own
    JOIN pg_attribute other ON other.attrelid = fk.confrelid AND other.attnum = pair.other
    WHERE guard.tgrelid = p_table
      AND guard.tgfoid IN ('"RI_FKey_noaction_del"'::regproc, '"RI_FKey_restrict_del"'::regproc)
      AND has_table_privilege(fk.conrelid, 'SELECT')
    GROUP BY fk.oid, fk.conrelid
    ORDER BY fk.oid
  LOOP
    EXECUTE format(
      'SELECT array_agg(DISTINCT t.id) FROM %s t JOIN %s r ON %s WHERE t.id = ANY ($1)',
      p_table, v_key.referrer, v_key.equal
    )
    INTO v_some
    USING p_ids;

    IF v_some IS NOT NULL THEN
      RAISE NOTICE USING
        ERRCODE = 'HK001',
        MESSAGE = format(
          '%s row(s) of %s stay, because rows of %s (%s) refer to them: %s%s',
          cardinality(v_some), p_table, v_key.referrer, v_key.columns,
          array_to_string(v_some[:3], ', '),
          CASE WHEN cardinality(v_some) > 3 THEN ', ...' END
        );
      v_all := v_all || v_some;
    END IF;
  END LOOP;

  RETURN v_all;
END
$$;
