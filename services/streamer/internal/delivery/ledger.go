package delivery

import "github.com/xmtp-selfhosted/backend/pkg/budget"

// ledger is a budget whose one holder is the engine, on behalf of all streams: what
// one of them may have of it depends on how much is free at the moment, which a
// fixed share could not say. Nobody waits for it in line: who was refused asks again
// when something was given back.
type ledger struct {
	budget *budget.Budget
	holder *budget.Holder
	// used is what is held, told what the budget knows of: it hears of all that one
	// event changed at once, since an envelope may change it for each of its streams.
	used, told int
}

func newLedger(bytes int) ledger {
	b := budget.New(int64(bytes), 0)
	return ledger{budget: b, holder: b.Holder()}
}

func (l *ledger) free() int { return int(l.budget.Total()) - l.used }

// charge counts bytes, whether there is room for them or not.
func (l *ledger) charge(bytes int) { l.used += bytes }

func (l *ledger) give(bytes int) { l.used -= bytes }

func (l *ledger) tell() {
	switch {
	case l.used > l.told:
		l.holder.Charge(int64(l.used - l.told))
	case l.used < l.told:
		l.holder.Give(int64(l.told - l.used))
	}
	l.told = l.used
}

// Budgets are what the engine holds in memory on behalf of clients, for metrics.
type Budgets struct {
	Delivery, Notices, Registrations *budget.Budget
}

// Budgets returns the budgets of the engine. They may be read at any time, and say
// what was true at the last TakeEffects.
func (e *Engine) Budgets() Budgets {
	return Budgets{Delivery: e.output.budget, Notices: e.notices.budget, Registrations: e.registrations.budget}
}
