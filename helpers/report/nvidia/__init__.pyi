from .comparison import compare as compare
from .pages import write_pages as write_pages
from .section import as_table as as_table
from .section import data as data
from .section import describe as describe
from .section import draw as draw
from .section import summary as summary
