package freeport_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

func TestPickedPortCanBeListenedOn(t *testing.T) {
	port, err := freeport.Pick()
	require.NoError(t, err)
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	require.NoError(t, err)
	require.Error(t, freeport.Check(port), "a port in use counts as free")
	require.NoError(t, listener.Close())
	require.NoError(t, freeport.Check(port))
}
