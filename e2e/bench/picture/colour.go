package picture

// colour is one of a line, in both schemes.
type colour struct{ Light, Dark string }

// colours differ for people who do not tell red from green, and stand out from the page
// in both schemes. They are made after the palette of Okabe and Ito, darker on a light
// page and lighter on a dark one, as labels are written in them.
// https://jfly.uni-koeln.de/color/
var colours = []colour{
	{"#b8410b", "#ff8f5c"}, // vermilion
	{"#8a6100", "#e9b949"}, // yellow
	{"#0b65a8", "#6cb6ff"}, // blue
	{"#00795a", "#3fcf9f"}, // green
}

// The rest of the picture.
var (
	page  = colour{"#ffffff", "#0d1117"}
	ink   = colour{"#1f2328", "#e6edf3"}
	muted = colour{"#59636e", "#9198a1"}
	grid  = colour{"#e4e8ec", "#262c36"}
)
