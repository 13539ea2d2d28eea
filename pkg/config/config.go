// Package config reads a process's configuration from the environment, once,
// and reports every mistake at the same time.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"

	"github.com/caarlos0/env/v11"
)

// Prefix starts the name of every variable of this project.
const Prefix = "XMTP_"

// Validator is a configuration that checks its ranges and relations. Its error
// names each wrong variable.
type Validator interface{ Validate() error }

// Load reads T from the environment and checks it.
func Load[T Validator]() (T, error) { return load[T](env.Options{Prefix: Prefix}) }

// LoadFrom is Load from a given environment, with full variable names.
func LoadFrom[T Validator](environment map[string]string) (T, error) {
	return load[T](env.Options{Prefix: Prefix, Environment: environment})
}

func load[T Validator](options env.Options) (T, error) {
	loaded, err := env.ParseAsWithOptions[T](options)
	if err != nil {
		return loaded, fmt.Errorf("read the configuration: %w", errors.Join(append(unreadable[T](options), err)...))
	}
	if err := loaded.Validate(); err != nil {
		return loaded, fmt.Errorf("check the configuration: %w", err)
	}
	return loaded, nil
}

// unreadable names the variables whose values have the wrong form: env itself
// names the field. Each is parsed once more without the others.
func unreadable[T any](options env.Options) []error {
	params, err := env.GetFieldParamsWithOptions(new(T), env.Options{Prefix: options.Prefix})
	if err != nil {
		return nil
	}
	environment := options.Environment
	if environment == nil {
		environment = env.ToMap(os.Environ())
	}
	var errs []error
	for _, param := range params {
		value, set := environment[param.Key]
		if !set {
			continue
		}
		_, err := env.ParseAsWithOptions[T](env.Options{Prefix: options.Prefix, Environment: map[string]string{param.Key: value}})
		if errors.Is(err, env.ParseError{}) {
			errs = append(errs, fmt.Errorf("%s has a value that cannot be read", param.Key))
		}
	}
	return errs
}

// Join checks the parts of a composed configuration together.
func Join(parts ...Validator) error {
	var errs []error
	for _, part := range parts {
		errs = append(errs, part.Validate())
	}
	return errors.Join(errs...)
}

// Secret is a value that is never printed: a URL with a password, a key.
type Secret string

const hidden = "[hidden]"

// String hides the value.
func (s Secret) String() string { return hidden }

// GoString hides the value from %#v.
func (s Secret) GoString() string { return hidden }

// LogValue hides the value from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText hides the value from JSON and other encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Reveal returns the value for its one use.
func (s Secret) Reveal() string { return string(s) }

// CheckURL refuses a secret that is not a URL of one of the schemes, without
// repeating it.
func (s Secret) CheckURL(variable string, schemes ...string) error {
	parsed, err := url.Parse(string(s))
	if err == nil && parsed.Host != "" {
		for _, scheme := range schemes {
			if parsed.Scheme == scheme {
				return nil
			}
		}
	}
	return fmt.Errorf("%s%s is not a URL with a host and one of the schemes %q", Prefix, variable, schemes)
}
