package stack

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheEndpointsAreForTheirOwnerAlone(t *testing.T) {
	s := &Stack{options: Options{Dir: t.TempDir()}, Endpoints: Endpoints{PrimaryURL: "postgres://u:hunter2@db/xmtp"}}
	require.NoError(t, s.writeEndpoints())
	file := filepath.Join(s.options.Dir, File)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	var read Endpoints
	require.NoError(t, json.Unmarshal(content, &read))
	require.Equal(t, s.Endpoints, read)
}
