SELECT system_identifier, timeline, server_started FROM lineage
