package cmdutil

import (
	"errors"
	"fmt"
	"strings"
)

// Exit codes.
const (
	ExitOK      = 0
	ExitFailed  = 1
	ExitUnknown = 2
)

// exitCodes is the meaning of each exit code, for the help and for docs/stability.md.
var exitCodes = [...]string{
	ExitOK:      "the command succeeded",
	ExitFailed:  "the command failed, could not read everything, or its answer is no: doctor found an error, or fit found no node",
	ExitUnknown: "doctor or fit has no answer, because the user may not read the necessary objects",
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

// wrap breaks a text into lines of at most 75 characters, and indents the lines after the first.
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

// ExitError is an error with an exit code.
type ExitError struct {
	error
	Code int
}

// Exit adds an exit code to an error.
func Exit(code int, err error) error { return ExitError{err, code} }

// Unwrap returns the error without the exit code.
func (e ExitError) Unwrap() error { return e.error }

// ExitCode returns the exit code of a process whose command returned err.
func ExitCode(err error) int {
	var exit ExitError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.Code
	default:
		return ExitFailed
	}
}
