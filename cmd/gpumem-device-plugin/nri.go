package main

import (
	"errors"

	"github.com/gpumem/gpumem/pkg/node/nri"
)

// connected says why the container runtime does not call the plugin, which is nil where it is not to.
func connected(p *nri.Plugin) error {
	if p == nil {
		return errors.New("the container runtime is not asked to call the plugin")
	}
	return p.Connected()
}

// late says which container runs without its limit.
func late(p *nri.Plugin) error {
	if p == nil {
		return nil
	}
	return p.Late()
}
