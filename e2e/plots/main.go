// Command plots draws the pictures of the documents from what benchmarks have recorded beside it:
//
//	go -C e2e/plots run .
//
// ready-pods.json becomes deploy/docs/ready-pods.svg, and so on. It is a module of its own, so that the
// program's needs no library that draws.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// pictures are the files of data, and what is drawn from each.
var pictures = map[string]string{
	"ready-pods.json": "../../deploy/docs/ready-pods.svg",
	"trip.json":       "../../deploy/docs/trip.svg",
}

func main() {
	for data, picture := range pictures {
		svg, err := drawing(data)
		if err == nil {
			err = os.WriteFile(picture, svg, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "plots:", err)
			os.Exit(1)
		}
	}
}

// drawing returns the SVG of a file of data.
func drawing(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var c chart
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	svg, err := c.svg()
	if err != nil {
		return nil, fmt.Errorf("draw %s: %w", file, err)
	}
	return svg, nil
}
