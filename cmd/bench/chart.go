package bench

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Line is one curve of a chart.
type Line struct {
	Name   string
	Color  string
	Values []float64
}

// Geometry of a chart, in pixels.
const (
	chartWidth  = 860
	panelHeight = 210
	marginLeft  = 70
	marginRight = 20
	marginTop   = 34
	panelGap    = 56
)

// Colors of the curves; they read on white and are told apart without red and green.
const (
	blue   = "#1f5fa8"
	orange = "#d9730d"
	purple = "#7b3fa0"
)

// Chart draws throughput and latency of a run over time, as an SVG document.
func (r *Result) Chart(title string) []byte {
	var rate, p50, p99 []float64
	unit := "envelopes per second"
	for _, p := range r.Points {
		value := p.Envelopes
		if r.Config.Workload == Mixed {
			unit, value = "calls per second", p.Calls
		}
		rate, p50, p99 = append(rate, value), append(p50, p.Latency.P50), append(p99, p.Latency.P99)
	}
	latency := "latency of calls, ms"
	if r.Config.hasStreams() {
		latency = "publish call to delivery, ms"
	}
	var b strings.Builder
	height := marginTop + 2*panelHeight + 2*panelGap
	open(&b, chartWidth, height)
	text(&b, marginLeft, 20, "start", 15, title)
	panel(&b, marginTop, unit, []Line{{unit, blue, rate}})
	panel(&b, marginTop+panelHeight+panelGap, latency, []Line{{"median", purple, p50}, {"99th percentile", orange, p99}})
	text(&b, chartWidth-marginRight, height-8, "end", 12, "seconds")
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// Bar is one figure beside its yardstick.
type Bar struct {
	Name          string
	Ours, Against float64
	OursName      string
	AgainstName   string
	Target        float64 // of the ratio; 0 is none
}

// Bars draws ratios against 1, with the target of each.
func Bars(title string, bars []Bar) []byte {
	const rowHeight, labelWidth, plot = 46, 330, 440
	var b strings.Builder
	height := marginTop + rowHeight*len(bars) + 30
	open(&b, chartWidth, height)
	text(&b, 10, 20, "start", 15, title)
	most := 1.0
	for _, bar := range bars {
		most = max(most, bar.Ours/bar.Against, bar.Target)
	}
	scale := plot / (most * 1.08)
	for i, bar := range bars {
		y := marginTop + i*rowHeight
		ratio := bar.Ours / bar.Against
		text(&b, 10, y+16, "start", 13, bar.Name)
		text(&b, 10, y+31, "start", 11, fmt.Sprintf("%s %s : %s %s", bar.OursName, short(bar.Ours), bar.AgainstName, short(bar.Against)))
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="20" fill="%s"/>`+"\n", labelWidth, y+6, ratio*scale, blue)
		text(&b, labelWidth+int(ratio*scale)+6, y+21, "start", 12, fmt.Sprintf("%.2f", ratio))
		if bar.Target > 0 {
			fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s" stroke-width="2"/>`+"\n",
				labelWidth+bar.Target*scale, labelWidth+bar.Target*scale, y+1, y+31, orange)
		}
	}
	text(&b, labelWidth, height-8, "start", 12, "ratio to the yardstick of the same run; the upright line is the target")
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

func open(b *strings.Builder, width, height int) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif">`+"\n", width, height, width, height)
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
}

func text(b *strings.Builder, x, y int, anchor string, size int, content string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s" font-size="%d" fill="#222">%s</text>`+"\n", x, y, anchor, size, html.EscapeString(content))
}

// panel draws curves over a common time axis of one value a second.
func panel(b *strings.Builder, top int, title string, lines []Line) {
	most, count := 0.0, 0
	for _, line := range lines {
		count = max(count, len(line.Values))
		if len(line.Values) > 0 {
			most = max(most, slices.Max(line.Values))
		}
	}
	most = ceiling(most)
	width := chartWidth - marginLeft - marginRight
	text(b, marginLeft, top+14, "start", 12, title)
	top += 22
	height := panelHeight - 22
	for i := range 5 {
		y := top + height*i/4
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="#ddd"/>`+"\n", marginLeft, marginLeft+width, y, y)
		text(b, marginLeft-6, y+4, "end", 11, short(most*float64(4-i)/4))
	}
	step := max(1, count/10)
	for second := 0; second < count; second += step {
		text(b, marginLeft+width*second/max(1, count-1), top+height+16, "middle", 11, strconv.Itoa(second+1))
	}
	for i, line := range lines {
		var points []string
		for j, value := range line.Values {
			x := float64(marginLeft) + float64(width)*float64(j)/float64(max(1, count-1))
			points = append(points, fmt.Sprintf("%.1f,%.1f", x, float64(top+height)-float64(height)*value/most))
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), line.Color)
		if len(lines) > 1 {
			x := chartWidth - marginRight - 150*(len(lines)-i)
			fmt.Fprintf(b, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/>`+"\n", x, top-18, line.Color)
			text(b, x+17, top-8, "start", 12, line.Name)
		}
	}
}

// ceiling is the next round number.
func ceiling(value float64) float64 {
	if value <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(value)))
	for _, factor := range []float64{1, 2, 4, 5, 8, 10} {
		if value <= unit*factor {
			return unit * factor
		}
	}
	return unit * 10
}

// short writes a number with what a reader needs of it.
func short(value float64) string {
	switch {
	case value >= 10_000:
		return fmt.Sprintf("%.0fk", value/1000)
	case value >= 1000:
		return fmt.Sprintf("%.1fk", value/1000)
	case value >= 100:
		return fmt.Sprintf("%.0f", value)
	case value >= 1:
		return fmt.Sprintf("%.1f", value)
	default:
		return fmt.Sprintf("%.2g", value)
	}
}
