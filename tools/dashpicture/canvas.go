package main

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"math"

	"golang.org/x/image/font"
	"golang.org/x/image/font/basicfont"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// The grid of a dashboard in pixels.
const (
	cell = 60
	row  = 32
	top  = 40
	gap  = 4
)

var (
	background = color.RGBA{0xf4, 0xf5, 0xf5, 0xff}
	paper      = color.RGBA{0xff, 0xff, 0xff, 0xff}
	ink        = color.RGBA{0x24, 0x29, 0x2e, 0xff}
	faint      = color.RGBA{0xe0, 0xe2, 0xe6, 0xff}
	grey       = color.RGBA{0x6a, 0x70, 0x78, 0xff}
	colors     = []color.RGBA{
		{0x1f, 0x77, 0xb4, 0xff}, {0xe6, 0x7e, 0x22, 0xff}, {0x2c, 0xa0, 0x2c, 0xff}, {0xc0, 0x39, 0x2b, 0xff}, {0x8e, 0x5b, 0xc0, 0xff},
		{0x8c, 0x56, 0x4b, 0xff}, {0xd8, 0x6b, 0xb4, 0xff}, {0x7f, 0x7f, 0x7f, 0xff}, {0x9a, 0xa0, 0x1e, 0xff}, {0x17, 0xae, 0xc0, 0xff},
	}
)

type canvas struct{ img *image.RGBA }

func newCanvas(w, h int) *canvas {
	c := &canvas{image.NewRGBA(image.Rect(0, 0, w, h))}
	c.fill(c.img.Bounds(), background)
	return c
}

func (c *canvas) fill(r image.Rectangle, with color.Color) {
	draw.Draw(c.img, r, image.NewUniform(with), image.Point{}, draw.Over)
}

func (c *canvas) box(x, y, w, h int) image.Rectangle {
	return image.Rect(x*cell+gap, top+y*row+gap, (x+w)*cell-gap, top+(y+h)*row-gap)
}

// letter is the width of a character.
const letter = 7

func (c *canvas) text(x, y int, s string, in color.Color) {
	d := font.Drawer{Dst: c.img, Src: image.NewUniform(in), Face: basicfont.Face7x13, Dot: fixed.P(x, y)}
	d.DrawString(s)
}

func fit(s string, width int) string {
	if n := width / letter; len(s) > n && n > 2 {
		return s[:n-2] + ".."
	}
	return s
}

func (c *canvas) title(s string, source *source) {
	c.text(gap*2, 25, s, ink)
	note := fmt.Sprintf("the dashboard's queries on Prometheus, %v up to %s; drawn by tools/dashpicture, not by Grafana",
		source.last, source.end.UTC().Format("2006-01-02 15:04 UTC"))
	c.text(c.img.Bounds().Dx()-len(note)*letter-2*gap, 25, note, grey)
}

func (c *canvas) heading(box image.Rectangle, s string) {
	c.text(box.Min.X+gap, box.Max.Y-6, "v "+s, ink)
}

func (c *canvas) stat(box image.Rectangle, title, unit string, lines []line) {
	c.fill(box, paper)
	c.text(box.Min.X+8, box.Min.Y+18, fit(title, box.Dx()-16), ink)
	value := math.NaN()
	for _, l := range lines {
		for _, v := range l.values {
			if !math.IsNaN(v) {
				value = v
			}
		}
	}
	text := "no data"
	if !math.IsNaN(value) {
		text = format(value, unit)
	}
	c.large(box.Min.X+8, box.Min.Y+40, text)
}

// large writes text three times as high.
func (c *canvas) large(x, y int, s string) {
	const scale = 3
	small := image.NewAlpha(image.Rect(0, 0, len(s)*letter, 14))
	d := font.Drawer{Dst: small, Src: image.Opaque, Face: basicfont.Face7x13, Dot: fixed.P(0, 11)}
	d.DrawString(s)
	for i := range small.Bounds().Dx() * scale {
		for j := range small.Bounds().Dy() * scale {
			if small.AlphaAt(i/scale, j/scale).A > 0 {
				c.img.Set(x+i, y+j, colors[2])
			}
		}
	}
}

func (c *canvas) chart(box image.Rectangle, title, unit string, lines []line, stacked bool, source *source) {
	c.fill(box, paper)
	c.text(box.Min.X+8, box.Min.Y+18, fit(title, box.Dx()-16), ink)
	plot := image.Rect(box.Min.X+64, box.Min.Y+28, box.Max.X-10, box.Max.Y-58)
	if stacked {
		lines = stack(lines)
	}
	highest := 0.0
	for _, l := range lines {
		for _, v := range l.values {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				highest = math.Max(highest, v)
			}
		}
	}
	step := niceStep(highest)
	limit := math.Max(step, math.Ceil(highest/step-1e-9)*step)
	for v := 0.0; v <= limit*1.0001; v += step {
		y := plot.Max.Y - int(v/limit*float64(plot.Dy()))
		c.fill(image.Rect(plot.Min.X, y, plot.Max.X, y+1), faint)
		mark := format(v, unit)
		c.text(plot.Min.X-6-len(mark)*letter, y+4, mark, grey)
	}
	for i := range 5 {
		at := source.end.Add(-source.last + time4(source, i))
		mark := at.UTC().Format("15:04:05")
		x := plot.Min.X + i*plot.Dx()/4
		c.text(min(max(x-len(mark)*letter/2, plot.Min.X), plot.Max.X-len(mark)*letter), plot.Max.Y+15, mark, grey)
	}
	for i := len(lines) - 1; i >= 0; i-- {
		c.curve(plot, lines[i].values, limit, colors[i%len(colors)])
	}
	c.legend(image.Rect(box.Min.X+8, plot.Max.Y+30, box.Max.X-8, box.Max.Y), lines)
	if len(lines) == 0 {
		c.text(plot.Min.X+plot.Dx()/2-4*letter, plot.Min.Y+plot.Dy()/2, "no data", grey)
	}
}

func (c *canvas) legend(box image.Rectangle, lines []line) {
	x, y := box.Min.X, box.Min.Y
	for i, l := range lines {
		name := fit(l.name, box.Dx()-20)
		width := 14 + len(name)*letter + 12
		if x+width > box.Max.X+12 && x > box.Min.X {
			x, y = box.Min.X, y+14
		}
		if y > box.Max.Y-2 {
			c.text(box.Max.X-5*letter, y-14, fmt.Sprintf("+ %d", len(lines)-i), grey)
			return
		}
		c.fill(image.Rect(x, y-7, x+10, y-3), colors[i%len(colors)])
		c.text(x+14, y, name, ink)
		x += width
	}
}

// curve draws a line of two pixels, with gaps where there is no value.
func (c *canvas) curve(plot image.Rectangle, values []float64, limit float64, in color.Color) {
	raster := vector.NewRasterizer(c.img.Bounds().Dx(), c.img.Bounds().Dy())
	at := func(i int) (float32, float32) {
		return float32(plot.Min.X) + float32(i)*float32(plot.Dx())/points,
			float32(plot.Max.Y) - float32(math.Min(values[i], limit)/limit)*float32(plot.Dy())
	}
	for i := range points {
		if math.IsNaN(values[i]) || math.IsNaN(values[i+1]) {
			continue
		}
		x0, y0 := at(i)
		x1, y1 := at(i + 1)
		dx, dy := x1-x0, y1-y0
		n := float32(math.Hypot(float64(dx), float64(dy)))
		px, py := -dy/n, dx/n
		raster.MoveTo(x0+px, y0+py)
		raster.LineTo(x1+px, y1+py)
		raster.LineTo(x1-px, y1-py)
		raster.LineTo(x0-px, y0-py)
		raster.ClosePath()
	}
	raster.Draw(c.img, c.img.Bounds(), image.NewUniform(in), image.Point{})
}
