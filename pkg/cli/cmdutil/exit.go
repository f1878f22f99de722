package cmdutil

import "errors"

// Unjudged is the exit code of a command that could not find out what it was asked.
const Unjudged = 2

// ExitError is an error with an exit code of its own.
type ExitError struct {
	error
	Code int
}

// Exit gives an error an exit code.
func Exit(code int, err error) error { return ExitError{err, code} }

// Unwrap returns the error itself.
func (e ExitError) Unwrap() error { return e.error }

// ExitCode is that of a program whose command has ended with err.
func ExitCode(err error) int {
	var exit ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	default:
		return 1
	}
}
