// Package doctor looks at everything a backend depends on, with the variables of
// its roles: their configuration, the databases, the bus, the chains and the
// public endpoint. It says what is wrong and what to do about it. It writes
// nothing anywhere.
package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// State is the verdict on one thing.
type State string

// The states: only a Bad one means that the backend can't work as it should.
const (
	Good State = "ok"
	Warn State = "warning"
	Bad  State = "WRONG"
)

// Finding is one thing that was looked at. It holds no secret: of a URL only the
// variable is named.
type Finding struct {
	// Area is configuration, primary, replica, bus, chain or endpoint; one of several
	// replicas has its place, as in replica 2, and a chain its id, as in chain eip155:1.
	Area  string `json:"area"`
	State State  `json:"state"`
	Found string `json:"found"`
	// Do is what to do about it, empty for Good.
	Do string `json:"do,omitempty"`
}

// Options say what to look at.
type Options struct {
	// Environment is the variables of the roles.
	Environment map[string]string
	// Endpoint is a connection to the public port; nil leaves it out.
	Endpoint grpc.ClientConnInterface
	// Patience bounds each attempt to reach something.
	Patience time.Duration
}

// Run looks at everything, in an order in which causes come before effects.
func Run(ctx context.Context, options Options) []Finding {
	d := &doctor{environment: options.Environment, patience: options.Patience}
	d.configuration()
	d.databases(ctx)
	d.bus(ctx)
	d.chains(ctx)
	if options.Endpoint != nil {
		d.endpoint(ctx, options.Endpoint)
	}
	return d.findings
}

type doctor struct {
	environment map[string]string
	patience    time.Duration
	findings    []Finding
}

func (d *doctor) good(area, format string, args ...any) {
	d.findings = append(d.findings, Finding{Area: area, State: Good, Found: fmt.Sprintf(format, args...)})
}

func (d *doctor) warn(area, do, format string, args ...any) {
	d.findings = append(d.findings, Finding{Area: area, State: Warn, Found: fmt.Sprintf(format, args...), Do: do})
}

func (d *doctor) bad(area, do, format string, args ...any) {
	d.findings = append(d.findings, Finding{Area: area, State: Bad, Found: strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "), Do: do})
}

// without is an error's text without the secrets of the environment.
func (d *doctor) without(err error) string {
	text := err.Error()
	for name, value := range d.environment {
		if strings.HasSuffix(name, "_URL") || name == "XMTP_CHAINS" {
			for part := range strings.SplitSeq(value, ",") {
				if part = strings.TrimSpace(part); part != "" {
					text = strings.ReplaceAll(text, part, "["+name+"]")
				}
			}
		}
	}
	return text
}
