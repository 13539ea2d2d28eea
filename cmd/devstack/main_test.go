package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
)

func TestTheTableHoldsNoPassword(t *testing.T) {
	own := stack.Endpoints{PrimaryURL: "postgres://postgres@127.0.0.1:1/xmtp", ReplicaURL: "postgres://postgres@127.0.0.1:2/xmtp", NATSURL: "nats://127.0.0.1:3"}
	shown := table(own, map[string]string{})
	for _, url := range []string{own.PrimaryURL, own.ReplicaURL, own.NATSURL} {
		require.Contains(t, shown, url)
	}
	foreign := map[string]string{
		"XMTP_PRIMARY_URL": "postgres://u:hunter2@db/xmtp", "XMTP_REPLICA_URL": "postgres://replica/xmtp?password=hunter2", "XMTP_NATS_URL": "nats://hunter2@bus",
	}
	shown = table(stack.Endpoints{PrimaryURL: foreign["XMTP_PRIMARY_URL"], ReplicaURL: foreign["XMTP_REPLICA_URL"], NATSURL: foreign["XMTP_NATS_URL"]}, foreign)
	require.NotContains(t, shown, "hunter2")
	for variable := range foreign {
		require.Contains(t, shown, "as "+variable+" says")
	}
}
