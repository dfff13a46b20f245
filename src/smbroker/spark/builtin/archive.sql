-- Every message, in the table `archive`.
-- every: 5 seconds
-- table: archive
SELECT offset, ts, topic, payload, kind, text, value, dialect, source, client, retain, qos, properties
FROM messages
