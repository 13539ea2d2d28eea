package main

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/services/gateway"
	"github.com/xmtp-selfhosted/backend/services/publisher"
	"github.com/xmtp-selfhosted/backend/services/reader"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// role is a program and the struct that it is configured by.
type role struct {
	name   string
	config reflect.Type
}

var roles = []role{
	{"publisher", reflect.TypeFor[publisher.Config]()},
	{"reader", reflect.TypeFor[reader.Config]()},
	{"streamer", reflect.TypeFor[streamer.Config]()},
	{"gateway", reflect.TypeFor[gateway.Config]()},
}

// variable is one line of the reference.
type variable struct {
	name     string
	owner    reflect.Type // the struct of its first role
	form     string
	fallback string
	roles    []string
	required []string
	meanings []meaning
}

// meaning is what a variable means to some roles.
type meaning struct {
	text  string
	roles []string
}

// collect lists the variables of all roles in the order of the structs.
func collect(docs *comments) ([]*variable, error) {
	c := collector{docs: docs, byName: map[string]*variable{}}
	for _, r := range roles {
		if err := c.walk(r.name, r.config); err != nil {
			return nil, err
		}
	}
	return c.variables, nil
}

type collector struct {
	docs      *comments
	byName    map[string]*variable
	variables []*variable
}

func (c *collector) walk(role string, owner reflect.Type) error {
	for i := range owner.NumField() {
		field := owner.Field(i)
		tag, tagged := field.Tag.Lookup("env")
		if !tagged {
			if field.Type.Kind() == reflect.Struct {
				if err := c.walk(role, field.Type); err != nil {
					return err
				}
			}
			continue
		}
		if err := c.add(role, owner, field, tag); err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) add(role string, owner reflect.Type, field reflect.StructField, tag string) error {
	options := strings.Split(tag, ",")
	name := config.Prefix + options[0]
	text, err := c.docs.of(owner, field.Name)
	if err != nil {
		return err
	}
	if text = inVariables(text, owner, field.Name); text == "" {
		return fmt.Errorf("%s: field %s of %s has no comment that says what it means", name, field.Name, owner)
	}
	v := c.byName[name]
	if v == nil {
		v = &variable{name: name, owner: owner, form: form(field.Type), fallback: field.Tag.Get("envDefault")}
		c.byName[name] = v
		c.variables = append(c.variables, v)
	}
	if fallback := field.Tag.Get("envDefault"); fallback != v.fallback {
		return fmt.Errorf("%s has the default %q in one role and %q in the %s", name, v.fallback, fallback, role)
	}
	v.roles = append(v.roles, role)
	for _, option := range options[1:] {
		if option == "required" {
			v.required = append(v.required, role)
		}
	}
	for i := range v.meanings {
		if v.meanings[i].text == text {
			v.meanings[i].roles = append(v.meanings[i].roles, role)
			return nil
		}
	}
	v.meanings = append(v.meanings, meaning{text, []string{role}})
	return nil
}

// inVariables says a comment in terms of variables instead of fields. The name
// of the field itself at the beginning is left out, or stays as a word where the
// sentence needs it: "URL of the servers".
func inVariables(text string, owner reflect.Type, own string) string {
	if rest, leads := strings.CutPrefix(text, own+" "); leads && !joins(rest) {
		text = strings.TrimPrefix(strings.TrimPrefix(rest, "is "), "are ")
	}
	words := strings.Split(text, " ")
	for i, word := range words {
		field, found := owner.FieldByName(strings.Trim(word, ",.;:"))
		tag := strings.Split(field.Tag.Get("env"), ",")[0]
		if !found || tag == "" {
			continue
		}
		if stays := i == 0 && word == own; hasHump(field.Name) && !stays || strings.HasPrefix(text, field.Name+" and ") {
			words[i] = strings.Replace(word, field.Name, "`"+config.Prefix+tag+"`", 1)
		}
	}
	return strings.Join(words, " ")
}

// joins reports whether a field's name and what follows it belong together.
func joins(rest string) bool {
	first, _, _ := strings.Cut(rest, " ")
	return first == "and" || first == "of" || first == "between"
}

// hasHump tells a field's name from a word that begins a sentence.
func hasHump(name string) bool { return strings.ToLower(name[1:]) != name[1:] }

// form says in a word how a value is written.
func form(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t == reflect.TypeFor[[]config.Secret]():
		return "secrets"
	case t.Kind() == reflect.Slice, t.Kind() == reflect.Map, reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return "list"
	case t == reflect.TypeFor[config.Secret]():
		return "secret"
	case t.Kind() == reflect.Bool:
		return "true, false"
	case t.Kind() == reflect.Float32, t.Kind() == reflect.Float64:
		return "decimal"
	case t.Kind() == reflect.String:
		return "text"
	}
	return "number"
}
