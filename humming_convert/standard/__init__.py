"""One vocabulary for every source.

The modules named here register packings and operations; whoever unpickles a layer needs them, also where no format was imported.
"""

from humming_convert.standard import packing_ct as packing_ct
from humming_convert.standard import packing_gptq as packing_gptq
from humming_convert.standard import rewrite as rewrite
from humming_convert.standard import zero_points as zero_points
