"""One file per thing that is read. A source returns model values and knows no face."""
