package gateway_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheConsoleIsServedWhenItIsTurnedOn(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	for setting, expected := range map[string]int{"": http.StatusNotFound, "true": http.StatusOK} {
		f := startGateway(t, role, map[string]string{"XMTP_CONSOLE": setting})
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.address+"/", nil)
		require.NoError(t, err)
		require.Equal(t, expected, do(t, request).StatusCode, "XMTP_CONSOLE=%s", setting)
	}
}
