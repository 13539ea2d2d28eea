// Package console is a small page for people: whether the backend answers, its
// configuration and a live tail of a topic. It uses the public API and nothing
// else, so it shows what any client could read.
package console

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed page
var embedded embed.FS

// policy keeps the page to its own origin: all that it needs is served here.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page on / with its script and style.
func Handler() http.Handler {
	page, err := fs.Sub(embedded, "page")
	if err != nil {
		panic(err) // the path is a constant and valid
	}
	files := http.FileServerFS(page)
	mux := http.NewServeMux()
	for _, path := range []string{"GET /{$}", "GET /console.css", "GET /console.js"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			header := w.Header()
			header.Set("Cache-Control", "no-cache")
			header.Set("Content-Security-Policy", policy)
			header.Set("Referrer-Policy", "no-referrer")
			header.Set("X-Content-Type-Options", "nosniff")
			files.ServeHTTP(w, r)
		})
	}
	return mux
}
