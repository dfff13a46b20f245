-- Numbers per topic and minute: in the table `statistics`, and, as they change, at `$stats/TOPIC`.
-- watermark: 1 minute
-- mode: update
-- every: 500 milliseconds
-- table: statistics
-- key: topic, window_start
-- topic: $stats/{topic}
SELECT topic, window.start AS window_start, window.end AS window_end, count,
       round(count / greatest(1, unix_millis(last) / 1000 - unix_millis(window.start) / 1000), 3) AS rate,
       min, mean, max, quantiles[0] AS p50, quantiles[1] AS p95
FROM (
    SELECT topic, window(ts, '1 minute') AS window, count(*) AS count, max(ts) AS last,
           min(value) AS min, avg(value) AS mean, max(value) AS max,
           percentile_approx(value, array(0.5, 0.95), 1000) AS quantiles
    FROM messages
    GROUP BY topic, window(ts, '1 minute')
)
