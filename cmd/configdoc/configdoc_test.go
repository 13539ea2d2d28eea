package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caarlos0/env/v11"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/services/gateway"
	"github.com/xmtp-selfhosted/backend/services/publisher"
	"github.com/xmtp-selfhosted/backend/services/reader"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

const root = "../.."

func TestTheReferenceIsFresh(t *testing.T) {
	require.NoError(t, run(root, false, true))
}

func TestAStaleReferenceFails(t *testing.T) {
	stale := t.TempDir()
	for _, folder := range []string{"pkg", "services"} {
		absolute, err := filepath.Abs(filepath.Join(root, folder))
		require.NoError(t, err)
		require.NoError(t, os.Symlink(absolute, filepath.Join(stale, folder)))
	}
	require.NoError(t, os.Mkdir(filepath.Join(stale, "docs"), 0o755))
	require.ErrorContains(t, run(stale, false, true), "read the reference")
	require.NoError(t, os.WriteFile(filepath.Join(stale, file), []byte("# Configuration\n"), 0o644))
	require.ErrorContains(t, run(stale, false, true), "-write")
	require.NoError(t, run(stale, true, false))
	require.NoError(t, run(stale, false, true))
}

func TestACommentIsSaidInVariables(t *testing.T) {
	type fields struct {
		URL       string `env:"NATS_URL"`
		FillRows  int    `env:"FILL_ROWS"`
		Fetches   int    `env:"FETCHES"`
		HeadReads int    `env:"HEAD_READS"`
	}
	for _, c := range []struct{ own, text, expected string }{
		{"URL", "URL of the servers.", "URL of the servers."},
		{"FillRows", "FillRows is how many rows wait, at the URL.", "how many rows wait, at the `XMTP_NATS_URL`."},
		{"Fetches", "FillRows is for both.", "`XMTP_FILL_ROWS` is for both."},
		{"Fetches", "Fetches and HeadReads bound it.", "`XMTP_FETCHES` and `XMTP_HEAD_READS` bound it."},
	} {
		require.Equal(t, c.expected, inVariables(c.text, reflect.TypeFor[fields](), c.own))
	}
}

// environment is what each role cannot start without.
var environment = map[string]string{
	"XMTP_IDENTIFIER":         "org.example.chat",
	"XMTP_PRIMARY_URL":        "postgres://user@primary/xmtp",
	"XMTP_REPLICA_URL":        "postgres://user@replica/xmtp",
	"XMTP_NATS_URL":           "nats://bus:4222",
	"XMTP_PUBLISHER_ENDPOINT": "publisher:5051",
	"XMTP_READER_ENDPOINT":    "reader:5052",
	"XMTP_STREAMER_ENDPOINT":  "streamer:5053",
}

// loaders read each role's configuration as its program does.
var loaders = map[string]func(map[string]string) error{
	"publisher": load[publisher.Config],
	"reader":    load[reader.Config],
	"streamer":  load[streamer.Config],
	"gateway":   load[gateway.Config],
}

func load[T config.Validator](environment map[string]string) error {
	_, err := config.LoadFrom[T](environment)
	return err
}

// read lists the variables that a role reads, as the library that parses them
// sees them.
func read(t *testing.T, structure reflect.Type) []env.FieldParams {
	t.Helper()
	params, err := env.GetFieldParamsWithOptions(reflect.New(structure).Interface(), env.Options{Prefix: config.Prefix})
	require.NoError(t, err)
	require.NotEmpty(t, params)
	return params
}

func TestTheReferenceAndTheProgramsHaveTheSameVariables(t *testing.T) {
	written, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	var documented, parsed []string
	for _, line := range regexp.MustCompile("(?m)^\\| `(XMTP_[A-Z0-9_]+)` \\|").FindAllSubmatch(written, -1) {
		documented = append(documented, string(line[1]))
	}
	for _, r := range roles {
		for _, param := range read(t, r.config) {
			parsed = append(parsed, param.Key)
		}
	}
	slices.Sort(documented)
	slices.Sort(parsed)
	require.Equal(t, slices.Compact(parsed), documented, "each once")
}

// wrong has a value that no role accepts, for the variables whose form says too
// little; without an entry it follows from the form.
var wrong = map[string]string{
	"XMTP_IDENTIFIER":          strings.Repeat("x", 257),
	"XMTP_PRIMARY_URL":         "mysql://user@primary/xmtp",
	"XMTP_REPLICA_URL":         "replica:5432",
	"XMTP_NATS_URL":            "http://bus:4222",
	"XMTP_CHAINS":              "mainnet",
	"XMTP_PUBLISHER_LISTEN":    "nowhere",
	"XMTP_READER_LISTEN":       "nowhere",
	"XMTP_STREAMER_LISTEN":     "nowhere",
	"XMTP_GATEWAY_LISTEN":      "nowhere",
	"XMTP_PUBLISHER_ENDPOINT":  "nowhere",
	"XMTP_READER_ENDPOINT":     "nowhere",
	"XMTP_STREAMER_ENDPOINT":   "nowhere",
	"XMTP_MIN_LIBXMTP_VERSION": "newest",
	"XMTP_GATEWAY_HTTP2":       "maybe",
	"XMTP_TLS_CERT_FILE":       "/certificate-without-its-key.pem",
	"XMTP_TLS_KEY_FILE":        "/key-without-its-certificate.pem",
	"XMTP_CORS_ORIGINS":        "app.example.org",
	"XMTP_OTLP_ENDPOINT":       "collector:4317",
	"XMTP_METRICS_LISTEN":      "nowhere",
	"XMTP_LOG_LEVEL":           "loud",
	"XMTP_LOG_FORMAT":          "xml",
}

func TestAWrongValueStopsTheStartWithTheNameOfItsVariable(t *testing.T) {
	for _, r := range roles {
		require.NoError(t, loaders[r.name](environment), "the %s starts from what is required", r.name)
		forms := map[string]string{}
		variables, err := collect(&comments{root: root, structs: map[string]map[string]string{}})
		require.NoError(t, err)
		for _, v := range variables {
			forms[v.name] = v.form
		}
		for _, param := range read(t, r.config) {
			values := []string{wrong[param.Key]}
			switch forms[param.Key] {
			case "number":
				values = []string{"many", "-1", "99999999999999999999"}
			case "decimal":
				values = []string{"many", "-1"}
			case "duration":
				values = []string{"30", "-1s", "soon"}
			case "true, false":
				values = []string{"perhaps"}
			}
			for _, value := range values {
				t.Run(r.name+"/"+param.Key+"="+value, func(t *testing.T) {
					require.NotEmpty(t, value, "the test knows no wrong value for this variable")
					changed := map[string]string{param.Key: value}
					for name, given := range environment {
						if _, set := changed[name]; !set {
							changed[name] = given
						}
					}
					require.ErrorContains(t, loaders[r.name](changed), param.Key)
				})
			}
		}
	}
}

func TestWhatIsRequiredIsNamedWhenItIsMissing(t *testing.T) {
	for _, r := range roles {
		for _, param := range read(t, r.config) {
			if !param.Required {
				continue
			}
			for _, given := range []func(map[string]string){
				func(e map[string]string) { delete(e, param.Key) },
				func(e map[string]string) { e[param.Key] = "" },
			} {
				changed := map[string]string{}
				for name, value := range environment {
					changed[name] = value
				}
				given(changed)
				require.ErrorContains(t, loaders[r.name](changed), param.Key, r.name)
			}
		}
	}
}
