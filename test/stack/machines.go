package stack

import (
	"encoding/json"
	"fmt"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
)

// Node returns a node with these simulated GPUs.
func Node(name string, gpus ...fakenvml.GPU) (cluster.Node, error) {
	description, err := json.Marshal(fakenvml.NewMachine(gpus...))
	if err != nil {
		return cluster.Node{}, fmt.Errorf("describe the GPUs of %s: %w", name, err)
	}
	return cluster.Node{Name: name, GPUs: description}, nil
}

// TwoNodes returns the nodes of the demo: one with two T4 of 16 GB, and one
// with an A100 of 80 GB beside a T4.
func TwoNodes() ([]cluster.Node, error) {
	even, err := Node("node1", fakenvml.T4("node1-0"), fakenvml.T4("node1-1"))
	if err != nil {
		return nil, err
	}
	mixed, err := Node("node2", fakenvml.A100_80GB("node2-0"), fakenvml.T4("node2-1"))
	if err != nil {
		return nil, err
	}
	return []cluster.Node{even, mixed}, nil
}
