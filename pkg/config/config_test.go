package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/config"
)

type part struct {
	Count int           `env:"COUNT" envDefault:"3"`
	URL   config.Secret `env:"URL,required"`
}

func (p part) Validate() error {
	var errs []error
	if p.Count < 1 {
		errs = append(errs, fmt.Errorf("XMTP_COUNT is %d, expected at least 1", p.Count))
	}
	return errors.Join(append(errs, p.URL.CheckURL("URL", "postgres", "postgresql"))...)
}

func TestLoadNamesEveryWrongVariableAtOnce(t *testing.T) {
	_, err := config.LoadFrom[part](map[string]string{"XMTP_COUNT": "0", "XMTP_URL": "http://user:hunter2@host/"})
	require.ErrorContains(t, err, "XMTP_COUNT")
	require.ErrorContains(t, err, "XMTP_URL")
	require.NotContains(t, err.Error(), "hunter2")

	_, err = config.LoadFrom[part](map[string]string{})
	require.ErrorContains(t, err, "XMTP_URL")

	_, err = config.LoadFrom[part](map[string]string{"XMTP_COUNT": "many", "XMTP_URL": "postgres://host/db"})
	require.ErrorContains(t, err, "XMTP_COUNT has a value that cannot be read")
	require.NotContains(t, err.Error(), "XMTP_URL")

	loaded, err := config.LoadFrom[part](map[string]string{"XMTP_URL": "postgres://u:p@host/db"})
	require.NoError(t, err)
	require.Equal(t, part{Count: 3, URL: "postgres://u:p@host/db"}, loaded)
}

func TestASecretIsNeverPrinted(t *testing.T) {
	secret := part{URL: "postgres://u:hunter2@host/db"}
	encoded, err := json.Marshal(secret)
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("start", "url", secret.URL, "all", secret)
	for _, text := range []string{fmt.Sprint(secret), fmt.Sprintf("%+v %#v %s", secret, secret, secret.URL), string(encoded), log.String()} {
		require.NotContains(t, text, "hunter2")
	}
	require.Equal(t, "postgres://u:hunter2@host/db", secret.URL.Reveal())
}
