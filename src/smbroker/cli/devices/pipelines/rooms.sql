-- Mean temperature of each room in the last ten seconds: in the table `rooms`, and at `derived/house/ROOM/temperature`.
-- from: house/+/temperature
-- watermark: 10 seconds
-- mode: update
-- table: rooms
-- key: room, start
-- topic: derived/house/{room}/temperature
SELECT levels[1] AS room, window.start AS start, round(avg(value), 2) AS mean, count(*) AS readings
FROM messages
WHERE value IS NOT NULL
GROUP BY levels[1], window(ts, '10 seconds')
