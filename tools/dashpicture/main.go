// Command dashpicture draws the dashboards of a folder as PNG files, from the
// answers of a running Prometheus to the dashboards' own queries. It stands in
// for Grafana where there is none.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	prometheus := flag.String("prometheus", "http://127.0.0.1:9090", "URL of Prometheus")
	from := flag.String("dashboards", "deploy/k8s/files/dashboards", "folder of dashboards")
	to := flag.String("out", "docs/pictures", "folder for the pictures")
	last := flag.Duration("last", 5*time.Minute, "the time to draw")
	ago := flag.Duration("ago", 0, "how long ago that time ended")
	flag.Parse()
	if err := run(*prometheus, *from, *to, *last, *ago); err != nil {
		fmt.Fprintln(os.Stderr, "dashpicture:", err)
		os.Exit(1)
	}
}

// board is what of a dashboard is drawn.
type board struct {
	Title  string
	Panels []panel
}

type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct {
		Defaults struct {
			Unit   string
			Custom struct{ Stacking struct{ Mode string } }
		}
	}
	Targets []struct{ Expr, LegendFormat string }
}

func run(prometheus, from, to string, last, ago time.Duration) error {
	paths, err := filepath.Glob(filepath.Join(from, "*.json"))
	if err != nil || len(paths) == 0 {
		return fmt.Errorf("found no dashboards in %s: %w", from, err)
	}
	source := &source{url: prometheus, end: time.Now().Add(-ago), last: last}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var b board
		if err := json.Unmarshal(text, &b); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := picture(source, b, filepath.Join(to, strings.TrimSuffix(filepath.Base(path), ".json")+".png")); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func picture(source *source, b board, path string) error {
	height := 0
	for _, p := range b.Panels {
		height = max(height, p.GridPos.Y+p.GridPos.H)
	}
	c := newCanvas(24*cell, top+height*row)
	c.title(b.Title, source)
	for _, p := range b.Panels {
		box := c.box(p.GridPos.X, p.GridPos.Y, p.GridPos.W, p.GridPos.H)
		if p.Type == "row" {
			c.heading(box, p.Title)
			continue
		}
		var lines []line
		for _, target := range p.Targets {
			answered, err := source.query(target.Expr, target.LegendFormat)
			if err != nil {
				return fmt.Errorf("panel %q: %w", p.Title, err)
			}
			lines = append(lines, answered...)
		}
		unit := p.FieldConfig.Defaults.Unit
		if p.Type == "stat" {
			c.stat(box, p.Title, unit, lines)
		} else {
			c.chart(box, p.Title, unit, lines, p.FieldConfig.Defaults.Custom.Stacking.Mode == "normal", source)
		}
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := png.Encode(file, c.img); err != nil {
		return err
	}
	return file.Close()
}
