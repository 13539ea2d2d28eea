package main

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// time4 is a quarter of the drawn time, i times.
func time4(s *source, i int) time.Duration { return s.last * time.Duration(i) / 4 }

// stack adds each line to those before it.
func stack(lines []line) []line {
	var below []float64
	var stacked []line
	for _, l := range lines {
		values := make([]float64, len(l.values))
		for i, v := range l.values {
			values[i] = v
			if below != nil && !math.IsNaN(below[i]) {
				if math.IsNaN(v) {
					values[i] = below[i]
				} else {
					values[i] = v + below[i]
				}
			}
		}
		below = values
		stacked = append(stacked, line{l.name, values})
	}
	return stacked
}

// niceStep divides an axis into about four parts.
func niceStep(highest float64) float64 {
	if highest <= 0 {
		return 1
	}
	rough := highest / 4
	power := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, factor := range []float64{1, 2, 2.5, 5} {
		if factor*power >= rough {
			return factor * power
		}
	}
	return 10 * power
}

// format writes a value as Grafana does for the unit.
func format(v float64, unit string) string {
	switch {
	case unit == "s" && v == 0:
		return "0 s"
	case unit == "s" && v < 1e-3:
		return short(v*1e6) + " us"
	case unit == "s" && v < 1:
		return short(v*1e3) + " ms"
	case unit == "s":
		return short(v) + " s"
	case unit == "percentunit":
		return short(v*100) + "%"
	case unit == "bytes" && v >= 1<<30:
		return short(v/(1<<30)) + "GiB"
	case unit == "bytes" && v >= 1<<20:
		return short(v/(1<<20)) + "MiB"
	case unit == "bytes" && v >= 1<<10:
		return short(v/(1<<10)) + "KiB"
	case unit == "bytes":
		return short(v) + " B"
	case unit == "reqps" || unit == "ops":
		return short(v) + "/s"
	}
	return short(v)
}

func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	case v >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
