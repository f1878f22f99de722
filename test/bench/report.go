package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
)

// result is one figure.
type result struct {
	Name  string  `json:"name"` // no spaces
	Value float64 `json:"value"`
	Unit  string  `json:"unit"` // "×" of a ratio

	// Low and High are the range in which half of the measurements are; 0 of a
	// figure that is measured once.
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`

	Goal    *float64 `json:"goal,omitempty"` // nil: for orientation
	AtLeast bool     `json:"atLeast,omitempty"`
}

// atMost and atLeast give a result its goal.
func (r result) atMost(goal float64) result  { r.Goal = &goal; return r }
func (r result) atLeast(goal float64) result { r.Goal, r.AtLeast = &goal, true; return r }

func (r result) met() bool {
	return r.Goal == nil || !r.AtLeast && r.Value <= *r.Goal || r.AtLeast && r.Value >= *r.Goal
}

// spread is the median of measurements, with the range of the middle half.
func spread(name, unit string, values []float64) result {
	values = slices.Sorted(slices.Values(values))
	at := func(part float64) float64 { return values[int(part*float64(len(values)-1)+0.5)] }
	return result{Name: name, Unit: unit, Value: at(0.5), Low: at(0.25), High: at(0.75)}
}

// report collects results and shows each as it comes.
type report struct {
	results  []result
	progress io.Writer
}

func (r *report) add(results ...result) {
	for _, one := range results {
		fmt.Fprintf(r.progress, "    %-44s %s %s  %s\n", one.Name, number(one.Value), one.Unit, one.half())
		r.results = append(r.results, one)
	}
}

func (r result) half() string {
	if r.Low == 0 && r.High == 0 {
		return ""
	}
	return number(r.Low) + " to " + number(r.High)
}

// number has three digits that tell.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

func (r *report) writeJSON(file string) error {
	data, err := json.MarshalIndent(r.results, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// print writes a table of all figures, and then a line for each goal.
func (r *report) print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tVALUE\tHALF OF THEM")
	for _, one := range r.results {
		fmt.Fprintf(table, "%s\t%s %s\t%s\n", one.Name, number(one.Value), one.Unit, one.half())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, one := range r.results {
		if one.Goal == nil {
			continue
		}
		verdict := "met"
		if !one.met() {
			verdict = "missed"
		}
		if _, err := fmt.Fprintf(out, "result: %s %s goal %s %s\n", one.Name, number(one.Value), number(*one.Goal), verdict); err != nil {
			return err
		}
	}
	return nil
}
