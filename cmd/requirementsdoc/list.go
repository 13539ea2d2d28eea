package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// binds is whom a requirement obliges.
type binds string

const (
	backend binds = "backend" // has at least one test
	client  binds = "client"  // what a client does, or may rely on others for; not ours to test
	planned binds = "planned" // decided, but not what the backend does yet: no test can prove it
)

// entry is one requirement.
type entry struct {
	id     string
	binds  binds
	text   string
	named  []string // tests that requirements.txt names, as folder.Name
	proofs []test   // all tests, once they are found
}

// anchor is what a link to the requirement ends with.
func (e *entry) anchor() string {
	if e.binds == client {
		return strings.ToLower(e.id) + "-client"
	}
	return strings.ToLower(e.id)
}

// section is a heading with the requirements below it, which bind the same.
type section struct {
	title   string
	intro   string
	entries []*entry
}

type requirements struct {
	sections []*section
	byAnchor map[string]*entry
}

var head = regexp.MustCompile(`^([A-Z]+-\d{3}|I\d{1,2}) (backend|client|planned)$`)

// parse reads the list; its form is explained at its top.
func parse(text string) (*requirements, error) {
	l := &requirements{byAnchor: map[string]*entry{}}
	var s *section
	var e *entry
	var wrong []error
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		found := head.FindStringSubmatch(line)
		switch {
		case line == "" || strings.HasPrefix(line, "//"):
		case strings.HasPrefix(line, "## "):
			s, e = &section{title: strings.TrimPrefix(line, "## ")}, nil
			l.sections = append(l.sections, s)
		case s == nil:
			wrong = append(wrong, fmt.Errorf("line %d is before the first section", n+1))
		case found != nil:
			e = &entry{id: found[1], binds: binds(found[2])}
			if len(s.entries) > 0 && s.entries[0].binds != e.binds {
				wrong = append(wrong, fmt.Errorf("line %d: section %q has requirements on the %s, expected one kind in a section", n+1, s.title, s.entries[0].binds))
			}
			if l.byAnchor[e.anchor()] != nil {
				wrong = append(wrong, fmt.Errorf("line %d: %s is there twice", n+1, e.id))
			}
			l.byAnchor[e.anchor()] = e
			s.entries = append(s.entries, e)
		case e == nil:
			s.intro = strings.TrimSpace(s.intro + " " + line)
		case strings.HasPrefix(line, "by "):
			e.named = append(e.named, strings.TrimPrefix(line, "by "))
		default:
			e.text = strings.TrimSpace(e.text + " " + line)
		}
	}
	return l, errors.Join(wrong...)
}

// prove gives each requirement its tests and reports every one that is missing.
func (l *requirements) prove(tests []test) error {
	byName := map[string]test{}
	var wrong []error
	for _, t := range tests {
		byName[t.key()] = t
		for _, id := range t.proves {
			e := l.byAnchor[strings.ToLower(id)]
			if e == nil {
				wrong = append(wrong, fmt.Errorf("%s: %s proves %s, which is not in the list", t.file, t.name, id))
				continue
			}
			e.proofs = append(e.proofs, t)
		}
	}
	for _, s := range l.sections {
		for _, e := range s.entries {
			for _, name := range e.named {
				t, exists := byName[name]
				if !exists {
					wrong = append(wrong, fmt.Errorf("%s is proved by %s, which does not exist", e.id, name))
					continue
				}
				e.proofs = append(e.proofs, t)
			}
			wrong = append(wrong, e.settle())
		}
	}
	return errors.Join(wrong...)
}

// settle puts the proofs in order and reports whether there are as many as its kind asks for.
func (e *entry) settle() error {
	slices.SortFunc(e.proofs, func(a, b test) int { return strings.Compare(a.key(), b.key()) })
	e.proofs = slices.CompactFunc(e.proofs, func(a, b test) bool { return a.key() == b.key() })
	switch {
	case e.text == "":
		return fmt.Errorf("%s has no sentence", e.id)
	case e.binds == backend && len(e.proofs) == 0:
		return fmt.Errorf("%s has no test", e.id)
	case e.binds != backend && len(e.proofs) > 0:
		return fmt.Errorf("%s has a test, but the list says %q: expected backend", e.id, e.binds)
	}
	return nil
}
