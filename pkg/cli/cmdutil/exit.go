package cmdutil

import (
	"errors"
	"fmt"
	"strings"
)

// The exit codes.
const (
	Done     = 0
	Failed   = 1
	Unjudged = 2
)

// exitCodes has the meaning of each exit code. The help and docs/stability.md are made of it.
var exitCodes = [...]string{
	Done:     "the command succeeded",
	Failed:   "the command failed, could not read everything, or its answer is no: doctor found an error, or fit found no node",
	Unjudged: "doctor or fit has no answer, because the user may not read the necessary objects",
}

// HelpOnExitCodes returns the exit codes for the help.
func HelpOnExitCodes() string {
	var out strings.Builder
	out.WriteString("Exit codes:")
	for code, meaning := range exitCodes {
		fmt.Fprintf(&out, "\n  %d  %s", code, wrap(meaning))
	}
	return out.String()
}

// wrap breaks a text into lines of at most 75 characters that are indented below an exit code.
func wrap(text string) string {
	var out strings.Builder
	length := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case length+1+len(word) > 75:
			out.WriteString("\n     ")
			length = 0
		default:
			out.WriteString(" ")
			length++
		}
		out.WriteString(word)
		length += len(word)
	}
	return out.String()
}

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
		return Done
	case errors.As(err, &exit):
		return exit.Code
	default:
		return Failed
	}
}
