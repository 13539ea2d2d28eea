package reader

import "github.com/xmtp-selfhosted/backend/pkg/budget"

// Responses is the budget of the reader's responses.
func (r *Reader) Responses() *budget.Budget { return r.responses }

// Requests is the budget of the reader's requests.
func (r *Reader) Requests() *budget.Budget { return r.requests }
