package telemetry

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// Label is a label of a metric. Values is empty where they are not a fixed few.
type Label struct {
	Name, Meaning string
	Values        []string
}

// Description is a metric as Prometheus shows it.
type Description struct {
	Name, Type, Meaning string
	Labels              []Label
	// Roles record it.
	Roles []string
}

// Catalogue describes every metric of the project, in the order of their
// definition.
func Catalogue() []Description {
	_, b := build(noop.NewMeterProvider())
	info := Description{
		Name: infoName, Type: "gauge", Meaning: infoMeaning, Roles: []string{Gateway, Publisher, Reader, Streamer},
		Labels: []Label{label("version", "the version of the program")},
	}
	described := []Description{info}
	for _, i := range b.made {
		described = append(described, i.Description)
	}
	return described
}

func label(name, meaning string, values ...string) Label { return Label{name, meaning, values} }

// builder collects the errors and the descriptions of instruments.
type builder struct {
	meter metric.Meter
	roles []string
	made  []made
	errs  []error
}

type made struct {
	Description
	adder adder // nil where nothing is added up
}

// adder is a counter of either kind.
type adder interface {
	Add(ctx context.Context, by int64, options ...metric.AddOption)
}

func (b *builder) err() error { return errors.Join(b.errs...) }

// in says which roles record the instruments that follow.
func (b *builder) in(roles ...string) { b.roles = roles }

// zero gives what a role adds up its first value, where the labels are known: a
// rate or an increase needs a value before the first event.
func (b *builder) zero(ctx context.Context, role string) {
	for _, i := range b.made {
		if i.adder == nil || !slices.Contains(i.Roles, role) {
			continue
		}
		switch len(i.Labels) {
		case 0:
			i.adder.Add(ctx, 0)
		case 1:
			for _, value := range i.Labels[0].Values {
				i.adder.Add(ctx, 0, metric.WithAttributes(attribute.String(i.Labels[0].Name, value)))
			}
		}
	}
}

func keep[T any](b *builder, instrument T, err error, name, kind, meaning string, labels []Label) T {
	b.errs = append(b.errs, err)
	if kind == "counter" {
		name += "_total"
	}
	adds, _ := any(instrument).(adder)
	b.made = append(b.made, made{Description{name, kind, meaning, slices.Clone(labels), b.roles}, adds})
	return instrument
}

func (b *builder) counter(name, meaning string, labels ...Label) metric.Int64Counter {
	i, err := b.meter.Int64Counter(name, metric.WithDescription(meaning))
	return keep(b, i, err, name, "counter", meaning, labels)
}

func (b *builder) upDown(name, meaning string, labels ...Label) metric.Int64UpDownCounter {
	i, err := b.meter.Int64UpDownCounter(name, metric.WithDescription(meaning))
	return keep(b, i, err, name, "gauge", meaning, labels)
}

func (b *builder) gauge(name, meaning string, labels ...Label) metric.Float64Gauge {
	i, err := b.meter.Float64Gauge(name, metric.WithDescription(meaning))
	return keep(b, i, err, name, "gauge", meaning, labels)
}

func (b *builder) intGauge(name, meaning string, labels ...Label) metric.Int64Gauge {
	i, err := b.meter.Int64Gauge(name, metric.WithDescription(meaning))
	return keep(b, i, err, name, "gauge", meaning, labels)
}

func (b *builder) observableGauge(name, meaning string, labels ...Label) metric.Int64ObservableGauge {
	i, err := b.meter.Int64ObservableGauge(name, metric.WithDescription(meaning))
	return keep(b, i, err, name, "gauge", meaning, labels)
}

func (b *builder) histogram(name, meaning string, buckets []float64, labels ...Label) metric.Float64Histogram {
	i, err := b.meter.Float64Histogram(name, metric.WithDescription(meaning), metric.WithExplicitBucketBoundaries(buckets...))
	return keep(b, i, err, name, "histogram", meaning, labels)
}

func (b *builder) intHistogram(name, meaning string, buckets []float64, labels ...Label) metric.Int64Histogram {
	i, err := b.meter.Int64Histogram(name, metric.WithDescription(meaning), metric.WithExplicitBucketBoundaries(buckets...))
	return keep(b, i, err, name, "histogram", meaning, labels)
}
