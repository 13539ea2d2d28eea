package siege

import (
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metrics are those of one process, by their names.
type metrics map[string]*dto.MetricFamily

func (r *Role) metrics(ctx context.Context) (metrics, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Metrics+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of the %s: %w", r.Name, err)
	}
	defer func() { _ = response.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(response.Body)
}

// by sums a metric by the values of a label; "" is for metrics without it.
func (m metrics) by(name, label string) map[string]float64 {
	sums := map[string]float64{}
	for _, metric := range m[name].GetMetric() {
		key := ""
		for _, pair := range metric.GetLabel() {
			if pair.GetName() == label {
				key = pair.GetValue()
			}
		}
		sums[key] += metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
	}
	return sums
}

func (m metrics) sum(name string) (sum float64) {
	for _, value := range m.by(name, "") {
		sum += value
	}
	return sum
}
