-- Returns the names of the tasks in the hours of the history.
SELECT DISTINCT history.task FROM horsies_history history WHERE history.width = 3600 AND history.task <> ''
