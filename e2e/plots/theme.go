package main

import (
	"bytes"
	"fmt"
	"image/color"
	"regexp"
	"strings"
)

// dark are the colours of a dark page, in place of those of a light one.
var dark = map[color.RGBA]string{
	page:      "#0d1117",
	ink:       "#e6edf3",
	muted:     "#9198a1",
	grid:      "#262c36",
	series[0]: "#ff8f5c",
	series[1]: "#e9b949",
	series[2]: "#6cb6ff",
	series[3]: "#3fcf9f",
}

const typeface = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"

var (
	opening    = regexp.MustCompile(`(?s)^.*?<svg [^>]*>`)
	fontFamily = regexp.MustCompile(`font-family:[^;"]*`)
)

// themed has the picture follow the reader's light or dark scheme, take the reader's typeface, and say what it is.
func themed(svg []byte, title, description string) ([]byte, error) {
	var light, darkScheme strings.Builder
	for i, c := range append([]color.RGBA{page, ink, muted, grid}, series...) {
		hex := fmt.Sprintf("#%02X%02X%02X", c.R, c.G, c.B)
		fmt.Fprintf(&light, "--c%d:%s;", i, hex)
		fmt.Fprintf(&darkScheme, "--c%d:%s;", i, dark[c])
		svg = bytes.ReplaceAll(svg, []byte(":"+hex), fmt.Appendf(nil, ":var(--c%d)", i))
	}
	if !opening.Match(svg) {
		return nil, fmt.Errorf("the drawing does not begin as an SVG: %.100s", svg)
	}
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="title desc">
<title id="title">%s</title>
<desc id="desc">%s</desc>
<style>svg{%s}@media (prefers-color-scheme:dark){svg{%s}}</style>`, width, height, escape(title), escape(description), &light, &darkScheme)
	svg = opening.ReplaceAllLiteral(svg, []byte(head))
	return fontFamily.ReplaceAll(svg, []byte("font-family:"+typeface)), nil
}
