package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"
)

// source is a Prometheus and the time that is drawn.
type source struct {
	url  string
	end  time.Time
	last time.Duration
}

// points is how many values a line has.
const points = 150

func (s *source) step() time.Duration { return s.last / points }

// line is one series of an answer; NaN is no value.
type line struct {
	name   string
	values []float64
}

var reference = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)

// query asks for a range, with the rate interval that a dashboard would take.
func (s *source) query(expression, legend string) ([]line, error) {
	expression = strings.ReplaceAll(expression, "$__rate_interval", "15s")
	start := s.end.Add(-s.last)
	parameters := url.Values{
		"query": {expression}, "step": {strconv.FormatFloat(s.step().Seconds(), 'f', 3, 64)},
		"start": {unix(start)}, "end": {unix(s.end)},
	}
	answer, err := http.Get(s.url + "/api/v1/query_range?" + parameters.Encode())
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	var decoded struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&decoded); err != nil {
		return nil, err
	}
	if decoded.Status != "success" {
		return nil, fmt.Errorf("%s: %s", expression, decoded.Error)
	}
	var lines []line
	for _, series := range decoded.Data.Result {
		l := line{name: reference.ReplaceAllStringFunc(legend, func(m string) string {
			return series.Metric[reference.FindStringSubmatch(m)[1]]
		}), values: make([]float64, points+1)}
		for i := range l.values {
			l.values[i] = math.NaN()
		}
		for _, pair := range series.Values {
			at, _ := pair[0].(float64)
			text, _ := pair[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			if i := int(math.Round((at - float64(start.UnixMilli())/1000) / s.step().Seconds())); err == nil && i >= 0 && i <= points {
				l.values[i] = value
			}
		}
		lines = append(lines, l)
	}
	sort.Slice(lines, func(i, j int) bool { return lines[i].name < lines[j].name })
	return lines, nil
}

func unix(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
