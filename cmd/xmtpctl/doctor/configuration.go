package doctor

import (
	"slices"
	"strings"

	"github.com/caarlos0/env/v11"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/services/gateway"
	"github.com/xmtp-selfhosted/backend/services/publisher"
	"github.com/xmtp-selfhosted/backend/services/reader"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// elsewhere are variables that no role reads.
var elsewhere = []string{"XMTP_DEV_DATA"}

// configuration loads the variables as each role would. The gateway's endpoints
// are taken as given: the doctor often runs where the roles' names mean nothing.
func (d *doctor) configuration() {
	known := map[string]bool{}
	for _, name := range elsewhere {
		known[name] = true
	}
	complete := map[string]string{
		"XMTP_PUBLISHER_ENDPOINT": "publisher:5051", "XMTP_READER_ENDPOINT": "reader:5052", "XMTP_STREAMER_ENDPOINT": "streamer:5053",
	}
	for name, value := range d.environment {
		complete[name] = value
	}
	wrong := 0
	seen := map[string]bool{}
	for _, role := range []struct {
		name string
		load func(map[string]string, map[string]bool) error
	}{
		{"publisher", load[publisher.Config]},
		{"reader", load[reader.Config]},
		{"streamer", load[streamer.Config]},
		{"gateway", load[gateway.Config]},
	} {
		err := role.load(complete, known)
		if err == nil {
			continue
		}
		wrong++
		for line := range strings.SplitSeq(d.without(err), "\n") {
			if !seen[line] {
				seen[line] = true
				d.bad("configuration", "correct it; docs/configuration.md says what each variable means", "the %s would not start: %s", role.name, line)
			}
		}
	}
	for name := range d.environment {
		if strings.HasPrefix(name, config.Prefix) && !known[name] {
			d.warn("configuration", "is it misspelled? docs/configuration.md lists all", "%s is read by no role", name)
		}
	}
	slices.SortFunc(d.findings, func(a, b Finding) int { return strings.Compare(a.Found, b.Found) })
	if wrong == 0 {
		d.good("configuration", "every role would start from these variables")
	}
}

func load[T config.Validator](environment map[string]string, known map[string]bool) error {
	params, err := env.GetFieldParamsWithOptions(new(T), env.Options{Prefix: config.Prefix})
	if err != nil {
		return err
	}
	for _, param := range params {
		known[param.Key] = true
	}
	_, err = config.LoadFrom[T](environment)
	return err
}
