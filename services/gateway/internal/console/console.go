// Package console is a small page for people: the backend's health, its
// configuration and a live tail of topics. It uses the public API and nothing
// else, so it shows what any client could read.
package console

import (
	_ "embed"
	"net/http"
)

//go:embed console.html
var page []byte

// Handler serves the page on / and nothing anywhere else.
func Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		header := w.Header()
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Cache-Control", "no-cache")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		// All that the page needs is in it; it calls its own origin only.
		header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "+
			"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		// A client that is gone needs no page.
		_, _ = w.Write(page)
	})
	return mux
}
