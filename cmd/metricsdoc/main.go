// Command metricsdoc writes docs/metrics.md, the list of every metric, from
// their definitions in pkg/telemetry. With -check it only says whether the file
// is current.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// target is the document, from the root of the repository.
const target = "docs/metrics.md"

func main() {
	check := flag.Bool("check", false, "fail if "+target+" is not current")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "metricsdoc:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	text := render(telemetry.Catalogue())
	if !check {
		return os.WriteFile(target, []byte(text), 0o644)
	}
	current, err := os.ReadFile(target)
	if err != nil {
		return err
	}
	if string(current) != text {
		return fmt.Errorf("%s is not current: run go run ./cmd/metricsdoc", target)
	}
	return nil
}

const head = `# Metrics, traces and logs

<!-- Written by cmd/metricsdoc from pkg/telemetry/metrics.go; change that. -->

Every role serves its metrics for Prometheus on ` + "`XMTP_METRICS_LISTEN`" + `, path ` + "`/metrics`" + `, and sends metrics and traces to an
OpenTelemetry collector at ` + "`XMTP_OTLP_ENDPOINT`" + ` (OTLP over gRPC). Both are off when the variable is empty. A collector that is
away costs nothing but the telemetry: it is dropped, and a warning is logged once a minute.

Nothing that a client sent is in any of it: no topic, inbox, key, payload, header value or address, and nothing derived from one.
A test runs a recorded session and searches everything that was exported (` + "`tests/telemetry`" + `).

## Metrics

Every metric has the label ` + "`role`" + ` (gateway, publisher, reader or streamer). The metrics of the Go runtime and the process
(` + "`go_*`, `process_*`" + `) come along.

| metric | type | roles | labels | meaning |
| --- | --- | --- | --- | --- |
`

const tail = `
## Traces

The gateway decides for each call whether it is traced (` + "`XMTP_TRACE_RATIO`" + `); the roles follow. The trace context of a client is not
taken over. A publish and what follows from it are one trace:

` + "```" + `
gateway     xmtp.backend.v1.PublishService/Publish
publisher     xmtp.backend.v1.PublishService/Publish
publisher       publish transaction      links to the other traced calls that shared it
publisher         publish                the work on the database
streamer        deliver                  from the notice to the first stream that took it; links to that stream
` + "```" + `

A call's span has its method and status code, a span of the database what was done. Error texts are not exported.

## Logs

JSON lines on standard error (` + "`XMTP_LOG_FORMAT=text`" + ` for people). Each call has one line when it ends: at debug level if it went well
or the client has to change something, at warn or error if it failed on our side; ` + "`XMTP_LOG_LEVEL=debug`" + ` shows all of them. A line
of a traced call has ` + "`trace_id` and `span_id`" + `.

## Dashboards and alerts

` + "`deploy/k8s/files/dashboards`" + ` has the dashboards for Grafana, ` + "`deploy/k8s/files/rules/alerts.yaml`" + ` the alerts for Prometheus; each
alert has a runbook in ` + "`docs/runbooks`" + `. docker-compose has both; the Helm chart installs them with ` + "`dashboards.enabled`" + ` and
` + "`rules.enabled`" + `, and has Prometheus scrape the roles with ` + "`serviceMonitor.enabled`" + `. All three are off by default, for clusters without
Grafana's sidecar and the Prometheus operator; ` + "`values-large.yaml`" + ` has them on.

The pictures show a load run on two processor cores that it shared with other work: the figures are not a benchmark. They were
not made by Grafana: ` + "`tools/dashpicture`" + ` draws the queries of the dashboards' files, answered by a real Prometheus.

![Overview](pictures/overview.png)

![Publish path](pictures/publish.png)

![Delivery](pictures/delivery.png)

![Database and replicas](pictures/database.png)

![Bus](pictures/bus.png)
`

func render(metrics []telemetry.Description) string {
	var b strings.Builder
	b.WriteString(head)
	for _, d := range metrics {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", d.Name, d.Type, strings.Join(slices.Sorted(slices.Values(d.Roles)), ", "), labels(d.Labels), d.Meaning)
	}
	b.WriteString(tail)
	return b.String()
}

func labels(all []telemetry.Label) string {
	var texts []string
	for _, l := range all {
		text := "`" + l.Name + "`: " + l.Meaning
		if len(l.Values) > 0 {
			text += " (" + strings.Join(l.Values, ", ") + ")"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "<br>")
}
