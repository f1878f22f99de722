package api

import (
	"errors"
	"fmt"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// ParseFallback reads a policy for pods that name none. Exclusive is none: a pod must
// ask for that itself, so that others see that it has.
func ParseFallback(s string) (placement.Policy, error) {
	switch p := placement.Policy(s); {
	case p == placement.Exclusive:
		return "", errors.New("a pod must ask for exclusive itself, so that others see that it has; want binpack or spread")
	case p.Known():
		return p, nil
	}
	return "", fmt.Errorf("%q: want binpack or spread", s)
}
