package store_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// A standby is refused, alone and as one of several hosts, whatever the URL asks for.
func TestPrimaryOnly(t *testing.T) {
	primary, replica := pgtest.Cluster(t)
	db := pgtest.Migrated(t, migrate)
	pgtest.WaitReplayed(t, primary, replica)
	hosts := func(a, b *pglocal.Server) string {
		return fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/%s?sslmode=disable", a.Port(), b.Port(), databaseOf(t, db.PrimaryURL))
	}
	for name, c := range map[string]struct {
		url     string
		refused bool
	}{
		"the primary":                        {db.PrimaryURL, false},
		"the standby":                        {db.ReplicaURL, true},
		"the primary, then the standby":      {hosts(primary, replica), false},
		"the standby, then the primary":      {hosts(replica, primary), false},
		"the standby twice":                  {hosts(replica, replica), true},
		"a primary that is to take writes":   {hosts(replica, primary) + "&target_session_attrs=read-write", false},
		"a standby where one is asked for":   {db.ReplicaURL + "&target_session_attrs=standby", true},
		"the standby where any is preferred": {db.ReplicaURL + "&target_session_attrs=prefer-standby", true},
	} {
		t.Run(name, func(t *testing.T) {
			pool, err := store.Open(secret(c.url), poolConfig, append(store.ForReads(), store.PrimaryOnly)...)
			require.NoError(t, err)
			defer pool.Close()
			err = pool.CheckSchema(t.Context())
			if !c.refused {
				require.NoError(t, err)
				return
			}
			require.Equal(t, fault.Unavailable, fault.KindOf(err))
			require.Equal(t, "the database is a standby, expected the primary", fault.Of(err).Text())
		})
	}
}

func databaseOf(t *testing.T, url string) string {
	t.Helper()
	var name string
	require.NoError(t, connect(t, url).QueryRow(t.Context(), `SELECT current_database()`).Scan(&name))
	return name
}
