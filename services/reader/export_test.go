package reader

import "github.com/xmtp-selfhosted/backend/pkg/budget"

// Responses is the budget of the reader's responses.
func (r *Reader) Responses() *budget.Budget { return r.responses }
