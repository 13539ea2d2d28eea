// Package migrations holds the schema: forward only and additive. What goes is
// removed one release after the last binary that used it.
package migrations

import "embed"

// Files are the migrations, named NNNNN_what.sql.
//
//go:embed *.sql
var Files embed.FS
